"""How quick is the interactive page?"""
