"""What does it compute, cost and learn on a GPU?"""
