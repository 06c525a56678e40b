"""Measurements on users' own data: the commands `rest-store bench` and `rest-store calibrate`."""
