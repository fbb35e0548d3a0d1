"""The store on PostgreSQL 14 or newer, through asyncpg."""
