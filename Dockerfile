# A service of one model:
#   docker build -t snefy-ldl .
#   docker run -p 8000:8000 -v "$PWD/model:/model:ro" -e SNEFY_LDL_TOKEN=... snefy-ldl
FROM python:3.11-slim
WORKDIR /app
COPY pyproject.toml README.md constraints.txt ./
COPY src src
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -c constraints.txt torch \
 && pip install --no-cache-dir '.[serve]' \
 && useradd --create-home serve
USER serve
ENV OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
EXPOSE 8000
# every route asks for the token, where there is one
HEALTHCHECK --interval=30s --timeout=3s --start-period=60s CMD python -c "import os, urllib.request as u; \
u.urlopen(u.Request('http://127.0.0.1:8000/healthz', headers={'Authorization': 'Bearer ' + os.environ.get('SNEFY_LDL_TOKEN', '')}))"
STOPSIGNAL SIGTERM
CMD ["snefy-ldl", "serve", "/model", "--host", "0.0.0.0", "--port", "8000"]
