"""How does a layer compare with a convolution, by channels and size?"""
