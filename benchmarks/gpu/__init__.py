"""The program behind `make gpu`: proves the CUDA paths of Holdfast on a machine with a GPU, part by part."""
