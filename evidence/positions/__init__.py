"""What do relative positions cost in a fused attention kernel?"""
