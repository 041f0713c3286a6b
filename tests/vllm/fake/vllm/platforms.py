class _Platform:
    def is_cpu(self) -> bool:
        return True


current_platform = _Platform()
