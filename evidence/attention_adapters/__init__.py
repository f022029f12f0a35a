"""Of which architectures does `analyze` read the attention?"""
