"""The reference training runtime."""

import warnings

# Said by torch when it is imported without NumPy, which nothing here needs.
warnings.filterwarnings("ignore", message="Failed to initialize NumPy", category=UserWarning)
