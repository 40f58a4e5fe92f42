"""`/v1/completions`: texts or token ids in, what follows out; with `echo` and `logprobs` it scores what was given."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from pelton.errors import ContextLengthError
from pelton.outputs import CompletionOutput, RequestOutput
from pelton.server.context import ServerContext
from pelton.server.openai.decode import bad_request
from pelton.server.openai.documents import Completion, CompletionChoice, CompletionLogprobs
from pelton.server.openai.incoming import Incoming, read_request
from pelton.server.openai.logprobs import CompletionLogprobsWriter, prompt_logprobs
from pelton.server.openai.prompts import ChoiceParts, EncodedPrompt, encoded_prompt
from pelton.server.openai.reply import Reply
from pelton.server.openai.sampling import check_stream, completion_wish, unencodable
from pelton.server.openai.schemas import MAX_PROMPTS, CompletionRequest
from pelton.server.openai.stream import ChunkWriter


async def create_completion(http_request: Request, context: ServerContext) -> Response:
    incoming = await read_request(http_request, context, CompletionRequest)
    check_stream(incoming.request)
    prompts = await _encode(incoming.request, context)
    return await CompletionReply(http_request, context, incoming, prompts).send()


def prompts_of(request: CompletionRequest) -> list[str | list[int]]:
    """One or many, texts or token ids. Raises ApiError (400) for a mixture, and for more choices than are taken."""
    given = request.prompt
    if isinstance(given, str):
        return [given]
    kinds = {type(item) for item in given}
    if len(kinds) > 1:
        raise bad_request(
            "`prompt` is a text, a list of texts, of token ids, or of lists of them: not a mixture", "prompt"
        )
    prompts: list[str | list[int]] = [given] if kinds == {int} else given  # type: ignore[assignment, list-item]
    if len(prompts) * (request.n or 1) > MAX_PROMPTS:
        raise bad_request(f"`prompt` times `n` asks for more than {MAX_PROMPTS} choices", "prompt")
    return prompts


async def _encode(request: CompletionRequest, context: ServerContext) -> list[EncodedPrompt]:
    wish = completion_wish(request)
    encoded = []
    for prompt in prompts_of(request):
        try:
            text, token_ids = await context.llm.encode(prompt)
        except ContextLengthError as error:
            raise unencodable(error, "prompt", wish, context.llm.limits.max_model_len) from error
        encoded.append(encoded_prompt(request, wish, text, token_ids, context.llm))
    return encoded


class CompletionReply(Reply[CompletionRequest]):
    id_prefix = "cmpl"
    chunk_kind = "text_completion"

    def __init__(
        self,
        http_request: Request,
        context: ServerContext,
        incoming: Incoming[CompletionRequest],
        prompts: list[EncodedPrompt],
    ) -> None:
        request = incoming.request
        super().__init__(http_request, context, incoming, prompts, hides_answer=request.max_tokens == 0)
        sampling = prompts[0].sampling
        self._logprobs_writers = [
            CompletionLogprobsWriter(request.logprobs or 0, self.tokenizer, skip_special=sampling.skip_special_tokens)
            for _ in range(len(prompts) * sampling.n)
        ]

    def document(self, choices: Sequence[ChoiceParts], outputs: Sequence[RequestOutput]) -> Completion:
        return Completion(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[self._choice(choice, outputs[choice.index // self.num_per_prompt]) for choice in choices],
            usage=self.prompts.usage(),
            timings=self.prompts.timings() if self.request.timings else UNSET,
        )

    def _choice(self, choice: ChoiceParts, told: RequestOutput) -> CompletionChoice:
        whole = choice.joined()
        prompt = self.encoded[choice.index // self.num_per_prompt]
        echo, echoed = self._echo(choice.index, told) if self.request.echo else ("", None)
        logprobs = self.logprobs(choice.index, whole)
        asks_ids = self.request.return_token_ids
        told_logprobs = None if self.request.prompt_logprobs is None else told.prompt_logprobs
        return CompletionChoice(
            index=choice.index,
            text=echo + whole.text,
            logprobs=logprobs if echoed is None or logprobs is None else echoed.followed_by(logprobs),
            finish_reason=choice.finish_reason,
            stop_reason=UNSET if whole.stop_reason is None else whole.stop_reason,
            token_ids=whole.token_ids if asks_ids else UNSET,
            prompt_token_ids=prompt.token_ids if asks_ids else UNSET,
            prompt_logprobs=UNSET if told_logprobs is None else prompt_logprobs(told_logprobs),
        )

    def first_chunks(self, writer: ChunkWriter, prompt: int, output: RequestOutput) -> bytes:
        token_ids = self.encoded[prompt].token_ids if self.request.return_token_ids else None
        if not self.request.echo and token_ids is None:
            return b""
        data = b""
        for index in range(prompt * self.num_per_prompt, (prompt + 1) * self.num_per_prompt):
            echo, logprobs = self._echo(index, output) if self.request.echo else ("", None)
            data += writer.text(index, echo, logprobs=logprobs, prompt_token_ids=token_ids)
        return data

    def logprobs(self, index: int, part: CompletionOutput) -> CompletionLogprobs | None:
        if self.request.logprobs is None:
            return None
        return self._logprobs_writers[index].write(part.token_ids, part.logprobs or [])

    def _echo(self, index: int, told: RequestOutput) -> tuple[str, CompletionLogprobs | None]:
        """The prompt's text, and its log-probabilities if they are wanted.

        A text is echoed as it was given: it does not spell the token that was put before it.
        """
        prompt = self.encoded[index // self.num_per_prompt]
        is_text = prompt.text is not None and not prompt.num_truncated
        text = (
            prompt.text
            if is_text and prompt.text is not None
            else self.tokenizer.decode(prompt.token_ids, skip_special=False)
        )
        if self.request.logprobs is None or told.prompt_logprobs is None:
            return text, None
        num_unspelled = 1 if is_text and self.tokenizer.add_bos else 0
        return text, self._logprobs_writers[index].echo(
            prompt.token_ids, told.prompt_logprobs, num_unspelled, len(text)
        )
