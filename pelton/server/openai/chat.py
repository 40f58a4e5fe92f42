"""`/v1/chat/completions`: a conversation in, the assistant's next message out."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from pelton.errors import ChatTemplateError, ContextLengthError
from pelton.outputs import CompletionOutput, RequestOutput
from pelton.server.context import ServerContext, record_of
from pelton.server.openai.decode import bad_request, decode_request
from pelton.server.openai.documents import AssistantAnswer, ChatChoice, ChatCompletion, ChatLogprobs
from pelton.server.openai.logprobs import chat_logprobs, prompt_logprobs
from pelton.server.openai.messages import template_messages
from pelton.server.openai.models import served_model
from pelton.server.openai.prompts import ChoiceParts, EncodedPrompt, encoded_prompt
from pelton.server.openai.reply import Reply
from pelton.server.openai.sampling import chat_wish, check_stream, unencodable
from pelton.server.openai.schemas import ChatCompletionRequest
from pelton.server.openai.stream import ChunkWriter


async def create_chat_completion(http_request: Request, context: ServerContext) -> Response:
    body = await http_request.body()
    decoded = decode_request(body, ChatCompletionRequest, is_strict=context.settings.strict_params)
    record = record_of(http_request)
    record.ignored_params = decoded.ignored
    record.model = served_model(decoded.request.model, context)
    check_stream(decoded.request)
    prompt = await _encode(decoded.request, context)
    return await ChatReply(http_request, context, decoded.request, [prompt]).send(decoded.headers)


async def _encode(request: ChatCompletionRequest, context: ServerContext) -> EncodedPrompt:
    wish = chat_wish(request, context.settings.max_tokens_default)
    continues = bool(request.continue_final_message)
    if continues and request.add_generation_prompt:
        raise bad_request(
            "`continue_final_message` continues a message, `add_generation_prompt` begins one", "continue_final_message"
        )
    template = context.llm.text.chat_template
    knows_developer = template is not None and "developer" in template.source
    arguments = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        arguments.setdefault("reasoning_effort", request.reasoning_effort)
    try:
        text, token_ids = await context.llm.encode_chat(
            template_messages(request.messages, knows_developer=knows_developer),
            add_generation_prompt=not continues and request.add_generation_prompt is not False,
            continue_final_message=continues,
            chat_template_kwargs=arguments,
        )
    except (ChatTemplateError, ContextLengthError) as error:
        raise unencodable(error, "messages", wish, context.llm.limits.max_model_len) from error
    return encoded_prompt(request, wish, text, token_ids, context.llm)


class ChatReply(Reply):
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
        return b"".join(writer.role(index, token_ids) for index in range(self.num_per_prompt))

    def logprobs(self, index: int, part: CompletionOutput) -> ChatLogprobs | None:
        num_top = self.encoded[0].sampling.logprobs
        if num_top is None:
            return None
        return chat_logprobs(part.token_ids, part.logprobs or [], num_top, self.tokenizer)
