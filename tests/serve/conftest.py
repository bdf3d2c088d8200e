"""Its place puts the modules beside it on the path of the tests in folders below."""
