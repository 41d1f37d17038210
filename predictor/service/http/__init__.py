"""HTTP building blocks: problems, paging, conditional responses, streaming, and names in addresses."""

from starlette.convertors import PathConvertor, register_url_convertor


class NameConvertor(PathConvertor):
    """Name in an address that may hold slashes and is not empty, so that `/models/` leads to `/models`."""

    regex = ".+"


register_url_convertor("name", NameConvertor())
