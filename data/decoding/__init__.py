"""Records of images on disk to crops: what a decoding process runs, so it imports neither JAX nor the rest of this."""
