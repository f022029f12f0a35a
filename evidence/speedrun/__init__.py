"""How far does the speed run come, and what do its controls say?"""
