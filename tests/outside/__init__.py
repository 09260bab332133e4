"""What other packages can add, each written in a file that touches none of ours."""
