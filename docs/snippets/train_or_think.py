"""Train or think: from how many queries on does training cost less than sampling more?"""

from ponder.measure import train_or_think

# What a query costs (FLOPs) and how often it is answered right, for 1, 4, 16 and 64 samples.
trained = ([1e12, 4e12, 16e12, 64e12], [0.62, 0.70, 0.76, 0.80])
present = ([1e12, 4e12, 16e12, 64e12], [0.40, 0.52, 0.63, 0.71])
result = train_or_think(quality=0.70, training=5e18, trained=trained, thinking=present)
print(f"training pays from {result.break_even_queries:,.0f} queries on")
print("for 10,000 queries:", result.cheaper_side(10_000))
print("for a million:", result.cheaper_side(1_000_000))
