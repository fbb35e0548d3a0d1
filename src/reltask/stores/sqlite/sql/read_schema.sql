-- The version of the schema; the table is missing in a file that reltask has never opened.
select schema_version from reltask_meta;
