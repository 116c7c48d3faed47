{{/* The image of every pod, and of the policy that says which one a sweep may run. */}}
{{- define "gpu-healthcheck.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{/* The agent's, which may be the slim one. */}}
{{- define "gpu-healthcheck.agentImage" -}}
{{- if not .Values.slim.enabled -}}
{{ include "gpu-healthcheck.image" . }}
{{- else -}}
{{- with .Values.image -}}
{{ .repository }}{{ if $.Values.slim.digest }}@{{ $.Values.slim.digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}-slim{{ end }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What DCGM does not need where there is none. */}}
{{- define "gpu-healthcheck.agentResources" -}}
{{- $resources := deepCopy (.Values.agent.resources | default dict) -}}
{{- if .Values.slim.enabled -}}
{{- $resources = mergeOverwrite $resources (dict "limits" (dict "memory" .Values.slim.memory)) -}}
{{- end -}}
{{ toYaml $resources }}
{{- end -}}
