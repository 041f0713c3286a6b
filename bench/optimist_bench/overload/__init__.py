"""`optimist bench overload`: a gateway under more requests than it takes."""
