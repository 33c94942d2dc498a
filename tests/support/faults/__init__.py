"""Helpers of the fault tests: processes that are killed, networks that are cut, disks that are full."""
