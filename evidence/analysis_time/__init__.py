"""What does an analysis cost?"""
