"""Tasks: what runs on a worker, under any engine. Small picklable values in, Arrow and file entries out. Entry: `model`."""
