"""What do trained networks look at, and is it what they live on?"""
