# The page of 'metavrf serve': see docs/page.md.
FROM python:3.11-slim

# An index beside pip's own may be named at the build, as one of torch without CUDA.
ARG PIP_EXTRA_INDEX_URL

WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --disable-pip-version-check --root-user-action ignore --constraint constraints.txt '.[serve]'

RUN useradd --create-home metavrf
USER metavrf
WORKDIR /home/metavrf
EXPOSE 8000
CMD ["metavrf", "serve", "--host", "0.0.0.0", "--port", "8000", "--no-open"]
