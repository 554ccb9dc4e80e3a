"""What a rank reports about its steps: times, numbers, devices, gradients."""
