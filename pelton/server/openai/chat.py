"""`/v1/chat/completions`: a conversation in, the assistant's next message out."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from pelton.errors import ChatTemplateError, ContextLengthError
from pelton.outputs import CompletionOutput, RequestOutput
from pelton.server.context import ServerContext
from pelton.server.openai.documents import AssistantAnswer, ChatChoice, ChatCompletion, ChatLogprobs
from pelton.server.openai.incoming import read_request
from pelton.server.openai.logprobs import chat_logprobs, prompt_logprobs
from pelton.server.openai.messages import template_call
from pelton.server.openai.prompts import ChoiceParts, EncodedPrompt, encoded_prompt
from pelton.server.openai.reply import Reply
from pelton.server.openai.sampling import chat_wish, check_stream, unencodable
from pelton.server.openai.schemas import ChatCompletionRequest
from pelton.server.openai.stream import ChunkWriter


async def create_chat_completion(http_request: Request, context: ServerContext) -> Response:
    incoming = await read_request(http_request, context, ChatCompletionRequest)
    check_stream(incoming.request)
    prompt = await _encode(incoming.request, context)
    return await ChatReply(http_request, context, incoming, [prompt]).send()


async def _encode(request: ChatCompletionRequest, context: ServerContext) -> EncodedPrompt:
    wish = chat_wish(request, context.settings.max_tokens_default)
    arguments = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        arguments.setdefault("reasoning_effort", request.reasoning_effort)
    call = template_call(
        request.messages,
        context.llm.text.chat_template,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        chat_template_kwargs=arguments,
    )
    try:
        text, token_ids = await context.llm.encode_chat(**call)
    except (ChatTemplateError, ContextLengthError) as error:
        raise unencodable(error, "messages", wish, context.llm.limits.max_model_len) from error
    return encoded_prompt(request, wish, text, token_ids, context.llm)


class ChatReply(Reply[ChatCompletionRequest]):
    id_prefix = "chatcmpl"
    chunk_kind = "chat.completion.chunk"

    def document(self, choices: Sequence[ChoiceParts], outputs: Sequence[RequestOutput]) -> ChatCompletion:
        told = outputs[0].prompt_logprobs
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[self._choice(choice) for choice in choices],
            usage=self.prompts.usage(),
            prompt_token_ids=self.encoded[0].token_ids if self.request.return_token_ids else UNSET,
            prompt_logprobs=UNSET if told is None else prompt_logprobs(told),
            timings=self.prompts.timings() if self.request.timings else UNSET,
        )

    def _choice(self, choice: ChoiceParts) -> ChatChoice:
        whole = choice.joined()
        return ChatChoice(
            index=choice.index,
            message=AssistantAnswer(whole.text),
            logprobs=self.logprobs(choice.index, whole),
            finish_reason=choice.finish_reason,
            stop_reason=UNSET if whole.stop_reason is None else whole.stop_reason,
            token_ids=whole.token_ids if self.request.return_token_ids else UNSET,
        )

    def first_chunks(self, writer: ChunkWriter, prompt: int, output: RequestOutput) -> bytes:
        token_ids = self.encoded[0].token_ids if self.request.return_token_ids else None
        return b"".join(writer.role(index, None if index else token_ids) for index in range(self.num_per_prompt))

    def logprobs(self, index: int, part: CompletionOutput) -> ChatLogprobs | None:
        num_top = self.encoded[0].sampling.logprobs
        if num_top is None:
            return None
        return chat_logprobs(part.token_ids, part.logprobs or [], num_top, self.tokenizer)
