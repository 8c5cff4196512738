# The service, from the wheel alone: pip wheel --no-deps --wheel-dir dist . && docker build -t rankcode .
FROM python:3.12-slim

COPY dist/rankcode-*.whl /tmp/
# The default build of PyTorch brings some gigabytes of CUDA. --build-arg TORCH="torch --index-url ADDRESS" takes another,
# such as the one for computers without a GPU, from the address that PyTorch's installation page gives.
ARG TORCH="torch"
RUN pip install --no-cache-dir $TORCH
RUN pip install --no-cache-dir "$(echo /tmp/rankcode-*.whl)[serve,audio]" && rm /tmp/rankcode-*.whl

RUN useradd --system --no-create-home rankcode
USER rankcode
WORKDIR /tmp
EXPOSE 8000
ENV OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health/live', timeout=2)"]
# Arguments of `docker run` follow, such as a model: docker run -v ./runs:/runs:ro rankcode /runs/gestures
ENTRYPOINT ["rankcode", "serve", "--api", "--host", "0.0.0.0", "--port", "8000"]
