"""Plain numbers, units and integer arithmetic, compared exactly."""
