"""With which versions of Python and of packages does it work?"""
