"""Generated from proto/rest_store/v1/datastore.proto by `make proto`; do not edit."""
