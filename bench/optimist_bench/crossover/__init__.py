"""`optimist bench crossover`: at which batch size and acceptance does speculation pay?"""
