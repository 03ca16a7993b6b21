"""Keys: how they compare, which shard they belong to, and the bytes under which their state is stored.

`kinds` says what may be a key, `canonical` how values compare, `hashing` which shard they belong to, `encoding` and
`codec` under which bytes they are stored. All of it is part of the format: what it gives for a value never changes
within `FORMAT`.
"""
