"""Do heads of a speech encoder look at fixed steps in time?"""
