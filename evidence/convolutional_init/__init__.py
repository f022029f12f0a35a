"""Does starting as a convolution help a vision transformer?"""
