"""Do heads of a text encoder look at the token before, or after?"""
