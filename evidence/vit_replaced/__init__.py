"""What does a trained vision transformer keep when its heads run as convolutions?"""
