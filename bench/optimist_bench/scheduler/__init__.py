"""`optimist bench scheduler`: what a step costs the scheduler, without processes."""
