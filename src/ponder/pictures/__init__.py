"""Pictures as data: pixels with a hash, PNG files by zlib alone, and the parts of a message that hold pictures."""
