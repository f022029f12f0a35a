"""What do the heads of a trained vision transformer look at?"""
