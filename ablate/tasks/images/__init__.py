"""Tasks on images: idx files, CIFAR, folders of pictures, ImageNet."""
