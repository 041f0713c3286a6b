"""POST /v1/responses."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from optimist_gateway.fronts.openai.answering import Answering, admitted_route
from optimist_gateway.fronts.openai.chat import tool_call_reader
from optimist_gateway.fronts.openai.responses.body import ResponsesBody
from optimist_gateway.fronts.openai.responses.request import response_request
from optimist_gateway.fronts.openai.responses.writer import ResponseWriter
from optimist_gateway.generation.generation import Generation, Service

PATH = "/v1/responses"


def responses_router(service: Service) -> APIRouter:
    """Returns the endpoint."""
    router = APIRouter(route_class=admitted_route(service.admission))
    answering = Answering(service, PATH, "resp_")

    @router.post(PATH)
    async def responses(request: Request, body: ResponsesBody) -> Response:
        """Answers a conversation with messages and calls of functions; keeps nothing of it."""
        wanted = response_request(body)

        def write(generation: Generation) -> ResponseWriter:
            reader = tool_call_reader(wanted, service.tokenizer.tool_format)
            return ResponseWriter(generation, body, service.model_name, reader)

        return await answering.answer(request, wanted, write)

    return router
