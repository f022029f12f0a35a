"""What do convolutions that are exact at borders change, and cost?"""
