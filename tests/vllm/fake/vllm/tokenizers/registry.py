from collections.abc import Sequence


class CharacterTokenizer:
    def get_vocab(self) -> dict[str, int]:
        return {chr(token_id): token_id for token_id in range(128)}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(each) for each in text]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, ids))


def cached_tokenizer_from_config(model_config: object) -> CharacterTokenizer:
    return CharacterTokenizer()
