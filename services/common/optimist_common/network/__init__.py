"""How services listen, reach one another and say whether they serve."""
