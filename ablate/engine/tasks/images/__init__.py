"""Tasks on images: idx files, CIFAR, folders of images, ImageNet."""
