"""How do the paper's networks compare, each with its own learning rate?"""
