"""What every request has in common: tensors, headers, errors, and admission."""
