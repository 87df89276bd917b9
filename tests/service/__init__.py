"""What must hold on a real event hub as it does on the emulator: `make test-azure`. Without it, the emulator's hub."""
