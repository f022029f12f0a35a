"""Do trained networks of other people's classes decide the same as attention?"""
