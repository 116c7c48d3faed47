# The agent's image. Build: docker build -t gpu-healthcheck:0.1.0 .
FROM docker.io/library/python:3.12-slim AS build
WORKDIR /src
COPY requirements/product.txt requirements/
RUN python -m venv /opt/gpu-healthcheck \
 && /opt/gpu-healthcheck/bin/pip install --no-cache-dir --require-hashes -r requirements/product.txt
COPY pyproject.toml README.md LICENSE instance-profiles.conf ./
COPY healthcheck healthcheck
COPY agent agent
COPY cli cli
RUN python -m venv /opt/build \
 && /opt/build/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
 && /opt/gpu-healthcheck/bin/pip install --no-cache-dir --no-deps /wheels/*.whl \
 && /opt/gpu-healthcheck/bin/python -m compileall -q /opt/gpu-healthcheck/lib

FROM docker.io/library/python:3.12-slim
LABEL org.opencontainers.image.title="gpu-healthcheck" \
      org.opencontainers.image.description="GPU node health for Kubernetes" \
      org.opencontainers.image.licenses="MIT-0"
COPY --from=build /opt/gpu-healthcheck /opt/gpu-healthcheck
ENV PATH=/opt/gpu-healthcheck/bin:$PATH \
    PYTHONUNBUFFERED=1
# Root: the agent opens the host's /dev/kmsg and the driver's device files.
ENTRYPOINT []
CMD ["gpu-healthcheck", "agent"]
